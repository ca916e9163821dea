//! One mistake of each kind that a table can have, each with what the compiler says of it.

#[path = "../../src/ops"]
mod ops {
    pub mod signature;
}

use ops::signature::*;

const X: Argument = activation(&["BL"]).field("x", "grad of x");
const STATE: Argument = state(&["B"]).field("initial_state", "grad of initial_state");
const LAST: Output = state_beside("x", &["B"]).field("last", "grad of last");
const SIZES: &[(char, &str)] = &[('B', "batch"), ('L', "seqlen")];
const RIGHT: Signature = Signature { name: "right", sizes: SIZES, arguments: &[X, STATE], results: &[LAST], ..SCAN };

static RIGHT_TABLE: Signature = Signature { ..RIGHT }.resolved();

static LETTER: Signature = Signature { name: "letter", arguments: &[activation(&["BQ"]).field("q", "")], results: &[], ..RIGHT }.resolved(); //~ letter: `BQ` of `q` has a letter that is not among `sizes`

static RANK: Signature = Signature { name: "rank", arguments: &[activation(&["BL", "LB"]).field("x", "")], ..RIGHT }.resolved(); //~ rank: `x` has two layouts of one rank, `BL` and `LB`

static FORM: Signature = Signature { name: "form", forms: &["BL", "L"], ..RIGHT }.resolved(); //~ form: `x` has no layout in one of the forms

static NAMES: Signature = Signature { name: "names", arguments: &[X, STATE.alias(&["x"])], ..RIGHT }.resolved(); //~ names: `initial_state` and `x` are both called `x`

static LIKE: Signature = Signature { name: "like", results: &[like("u", &["BL"]).field("y", "grad of y")], ..RIGHT }.resolved(); //~ like: `y` names `u`, which is no argument

static DTYPE: Signature = Signature { name: "dtype", results: &[LAST.dtype(ResultType::Promoted("x", "v"))], ..RIGHT }.resolved(); //~ dtype: `last` names `v`, which is no argument

static COMPLEX: Signature = Signature { name: "complex", arguments: &[X.complex(Complex::As(&["A"])), STATE], ..RIGHT }.resolved(); //~ complex: `x` names `A`, which is no argument

static WITHOUT: Signature = Signature { name: "without", results: &[LAST.complex(Complex::Without("D"))], ..RIGHT }.resolved(); //~ without: `last` names `D`, which is no argument

static BESIDE: Signature = Signature { name: "beside", results: &[LAST.beside("residual")], ..RIGHT }.resolved(); //~ beside: `last` names `residual`, which is no argument

static LEADERS: Signature = Signature { name: "leaders", leaders: &[0, 2], ..RIGHT }.resolved(); //~ leaders: `leaders` has the number of no argument

static SAVED: Signature = Signature { name: "saved", saved: Saved::Result(1), ..RIGHT }.resolved(); //~ saved: `saved` has the number of no result

static DECAY: Signature = Signature { name: "decay", decay: Some(&LONGER), ..RIGHT }.resolved(); //~ decay: the layouts of `decay` are not the first axes of those of `last`

static NO_STATE: Signature = Signature { name: "no_state", decay: Some(&LAST_DECAY), results: &[], ..RIGHT }.resolved(); //~ no_state: there is a `decay`, and no result is a state

static LIMIT: Signature = Signature { name: "limit", limit: Limit { names: "batch", bytes: 10, what: "" }, ..RIGHT }.resolved(); //~ limit: `limit` allows more bytes than an allocation can have

static MANY: Signature = Signature { name: "many", results: &[LAST; 4], ..RIGHT }.resolved(); //~ many: more arguments, options or results than calls by position have places

static FACTS: Signature = Signature { name: "facts", facts: Facts { state_steps: "BLN", ..Facts::NONE }, ..RIGHT }.resolved(); //~ facts: `BLN` of `facts` has a letter that is not among `sizes`

static LONGER: Output = state_beside("x", &["BL"]).field("decay", "grad of decay");
static LAST_DECAY: Output = state_beside("x", &["B"]).field("decay", "grad of decay");

fn main() {}
