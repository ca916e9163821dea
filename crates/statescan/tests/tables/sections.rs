//! Tables whose sections the macros refuse, each with what the compiler says of it.

#[path = "../../src/ops"]
mod ops {
    pub(crate) mod table;
}

use ops::table;

// `results` after `options` is the order
table::operation! { //~ operation!: the sections are, in this order
    pub SIGNATURE = SCAN;
    facts = NONE;
    Args;
    required { x: plain = activation(&["BL"]), }
    optional {}
    results { y: plain = like("x", &["BL"]), }
    options {}
    backward_workspace {}
}

// there is no such section
table::operation! { //~ operation!: the sections are, in this order
    pub SIGNATURE = SCAN;
    facts = NONE;
    Args;
    required { x: plain = activation(&["BL"]), }
    optional {}
    settings {}
    options {}
    results { y: plain = like("x", &["BL"]), }
    backward_workspace {}
}

// a tensor has a verb
table::operation! { //~ operation!: the sections are, in this order
    pub SIGNATURE = SCAN;
    facts = NONE;
    Args;
    required { x = activation(&["BL"]), }
    optional {}
    options {}
    results { y: plain = like("x", &["BL"]), }
    backward_workspace {}
}

// a step is one of all rows
table::step! { //~ step!: the sections are, in this order
    pub SIGNATURE = SCAN;
    facts = NONE;
    Args;
    required { x = activation(&["BD"]), }
    optional {}
    sequences { sequences, }
    options {}
    results { y = like("x", &["BD"]), }
}

fn main() {}
