"""Modules under the import paths of other packages."""

import functools
import opcode
import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from .._extras import naming_torch
from . import _recurrent_gemma, _replacing
from ._names import MODULES, PACKAGES, VERSIONS, sources

# names that `transformers` finds other functions under
_BY_ASKER = (
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "chunk_gated_delta_rule",
    "chunk_kda",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_kda",
    "mamba_chunk_scan_combined",
    "mamba_inner_fn",
    "mamba_split_conv1d_scan_combined",
    "selective_scan_fn",
)


def _find(name, module):
    try:
        return getattr(import_module(sources(module)[name], __package__), name)
    except ModuleNotFoundError as error:
        raise naming_torch(f"statescan, which stands in for {module}.{name},", error) from None


def _getter(module):
    """The function that is called where a module does not have a name in its dictionary."""
    known = sources(module)

    def find(name):
        if name in known and name in _BY_ASKER:
            found, for_models = _find(name, module), import_module("._transformers", __package__)
            # `lrnnx` has functions of these names, too
            asking = for_models.asking(1) if module.startswith(("mamba_ssm", "causal_conv1d", "fla")) else None
            return found if asking is None else for_models.given(name, asking)
        if _is_import_of_a_name(sys._getframe(1)):
            raise ImportError(_missing(module, name), name=module)
        raise AttributeError(f"module {module!r} of statescan has no attribute {name!r} (it has: {_listed(module)})")

    return find


def _is_import_of_a_name(frame):
    """Whether a frame is at `from module import name`."""
    return frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM


_IMPORT_FROM = opcode.opmap["IMPORT_FROM"]


def _is_import_of_a_module(frame):
    """Whether a frame of the import system belongs to a statement that wants a module: it may only ask whether there is one, or
    whether a name of a `from` is one."""
    wanted = False
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        name = frame.f_code.co_name
        if name == "_handle_fromlist":
            return False
        wanted |= name == "_find_and_load"
        frame = frame.f_back
    return wanted


def _listed(module):
    """The names of a module, and the modules below it."""
    below = {name.removeprefix(f"{module}.").partition(".")[0] for name in MODULES if name.startswith(f"{module}.")}
    return ", ".join(sorted(below | sources(module).keys()))


@functools.cache
def _missing(module, name):
    """Says, with a warning at the first time, that a name is not here: what asks for it may go on without a word."""
    package = module.partition(".")[0]
    what = f"statescan stands in for {package}, and has no {module}.{name} ({module} has: {_listed(module)})"
    words = f"{what}; install {PACKAGES[package]} for it"
    warnings.warn(words, stacklevel=3)
    return words


class _StandIns(MetaPathFinder, Loader):
    """Finds the modules above. It is asked last, so a package that is installed goes first."""

    def find_spec(self, fullname, path=None, target=None):
        above, _, name = fullname.rpartition(".")
        parent = sys.modules.get(above)
        if parent is not None and getattr(parent.__spec__, "loader", None) is not self:
            # a module that the installed package does not have
            return None
        if fullname not in MODULES:
            if parent is not None and _is_import_of_a_module(sys._getframe(1)):
                raise ModuleNotFoundError(_missing(above, name), name=fullname)
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in MODULES)
        return ModuleSpec(fullname, self, origin="statescan.compat", is_package=is_package)

    def exec_module(self, module):
        package = module.__name__.partition(".")[0]
        if module.__name__ in VERSIONS:
            module.__version__ = VERSIONS[package]
        names = sources(module.__name__)
        module.__all__ = sorted(names)
        module.__getattr__ = _getter(module.__name__)
        vars(module).update({name: _find(name, module.__name__) for name in names if name not in _BY_ASKER})


class _BeforeBroken(MetaPathFinder):
    """Finds the stand-ins of packages that are installed and cannot be imported; it is asked first."""

    def find_spec(self, fullname, path=None, target=None):
        return _STAND_INS.find_spec(fullname, path, target) if fullname.partition(".")[0] in _replacing.BROKEN else None


_STAND_INS = _StandIns()
_BEFORE_BROKEN = _BeforeBroken()


class Installation:
    """Records what a call of `install` has done. As a context manager, or by `undo`, it is put back; what other calls want
    stays until theirs is, too."""

    def __init__(self, replace: bool) -> None:
        self.replace = replace

    def __enter__(self) -> "Installation":
        return self

    def __exit__(self, *error: Any) -> None:
        self.undo()

    def undo(self) -> None:
        """Puts back what no other call wants; stand-ins that were imported stay with who has them."""
        with _replacing.LOCK:
            if self not in _WANTED:
                return
            _WANTED.remove(self)
            if not any(other.replace for other in _WANTED):
                _replacing.put_back()
                _drop(_BEFORE_BROKEN, _replacing.BROKEN)
            if not _WANTED:
                _drop(_STAND_INS, PACKAGES)
                _recurrent_gemma.put_back()


# the calls of `install` that were not undone; `_replacing.LOCK` guards them
_WANTED: list[Installation] = []


def _drop(finder, packages):
    """Finds stand-ins of packages no more."""
    if finder not in sys.meta_path:
        return
    sys.meta_path.remove(finder)
    for package in packages:
        if _stands_in(sys.modules.get(package)):
            _replacing.forget(package)


def _stands_in(module):
    return getattr(getattr(module, "__spec__", None), "loader", None) is _STAND_INS


def install(*, replace: bool = False) -> Installation:
    """Lets code that imports the operations, layers, blocks or models of `mamba_ssm`, `causal_conv1d`, `lrnnx` or `nkilib` run on
    this package where those are not installed. What is not here fails to be imported, with a sentence that names what to install.

    Without `replace` it only adds entries to `sys.meta_path`: nothing is imported now, and a package that is installed is left
    alone. Call it before the code that imports them. Models of `transformers` look for them when their module is first imported;
    of RecurrentGemma the loop over tokens is replaced in any case.

    Args:
        replace: whether functions of packages that are installed run on this one, too, wherever they have been imported already.
            The packages are imported now. Their layers, norms and models stay what they are, with their parameters, and call
            these functions; `LRU` of `lrnnx`, which calls none, has our `forward`. A call that is not possible here is the
            package's, with one warning for each reason; what cannot be imported, as an extension or Triton is missing, is found
            here.

    Returns:
        A context manager, which undoes this call. Calls may overlap, also in several threads: the last one undone puts back.

    Examples:
        >>> with install():
        ...     from mamba_ssm import Mamba2
        >>> Mamba2.__module__
        'statescan.nn.mamba2'
    """
    with _replacing.LOCK:
        is_first = _STAND_INS not in sys.meta_path
        if is_first:
            sys.meta_path.append(_STAND_INS)
            _recurrent_gemma.put()
        if replace:
            _replacing.replace(_STAND_INS)
            if _replacing.BROKEN and _BEFORE_BROKEN not in sys.meta_path:
                sys.meta_path.insert(0, _BEFORE_BROKEN)
        made = Installation(replace)
        _WANTED.append(made)
        late = _late() if is_first else []
    if late:
        warnings.warn(f"install() came after the import of {', '.join(late)}, which will not use it: {_CURE}", stacklevel=2)
    return made


_CURE = "call it before the first import of a model, in a new process"


class Report(dict[str, str]):
    """Tells what runs on what: words by the full names of functions and layers. It is printed one a line."""

    def __str__(self) -> str:
        return "\n".join(f"{name}: {words}" for name, words in self.items())


def report() -> Report:
    """Tells what functions and layers of `mamba_ssm`, `causal_conv1d`, `lrnnx` and `nkilib` run on, and models of `transformers`
    that look for them: if they are imported, or once they are; and what was imported too early.

    Examples:
        >>> with install():
        ...     print(report()["nkilib"])
        ready: statescan stands in for it as soon as it is imported
    """
    found = Report()
    for package in VERSIONS:
        module = sys.modules.get(package)
        if package in _replacing.BROKEN and _BEFORE_BROKEN in sys.meta_path:
            found[package] = f"statescan; what is installed cannot be imported: {_replacing.BROKEN[package]}"
        elif module is None:
            found[package] = _once_imported(package)
        elif _stands_in(module):
            found[package] = f"statescan, which stands in for {VERSIONS[package].partition('+')[0]}"
        else:
            found[package] = f"installed, {getattr(module, '__version__', 'of an unknown version')}"
            found.update(_replacing.described(package))
    for_models = sys.modules.get(f"{__package__}._transformers")
    chosen = [] if for_models is None else [name for name in for_models.CHOSEN if name in sys.modules]
    found.update({name: "statescan" for name in sorted(chosen)})
    if _recurrent_gemma.is_ours():
        found[_recurrent_gemma.MODULE] = "statescan for the loop over tokens"
    found.update({name: f"its own functions, it was imported before install(): {_CURE}" for name in _late()})
    return found


def _once_imported(package):
    """Says how a package will be once it is imported."""
    if _replacing.installed(package, _STAND_INS):
        return "installed, not imported yet; install(replace=True) puts statescan in its place"
    if _STAND_INS in sys.meta_path:
        return "ready: statescan stands in for it as soon as it is imported"
    return "not installed; install() lets statescan stand in for it"


def _late():
    """Modules of models that have looked for functions where there were none: they have neither ours nor those of a package."""
    if _replacing.installed("causal_conv1d", _STAND_INS):
        return []
    for_models = sys.modules.get(f"{__package__}._transformers")
    chosen = {} if for_models is None else for_models.CHOSEN
    return [
        name
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.models.") and name not in chosen and _has_others(module)
    ]


def _has_others(module):
    """Whether a module has looked for functions, or has none, that are not ours."""
    functions = getattr(module, "__dict__", {})
    found = getattr(functions.get("causal_conv1d_fn"), "__module__", None) or ""
    return "causal_conv1d_fn" in functions and not found.startswith("statescan.")
