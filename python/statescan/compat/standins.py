"""Modules under the import paths of other packages."""

import functools
import opcode
import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

from . import replacing
from .names import MODULES, PACKAGES, VERSIONS, sources

# names that `transformers` finds other functions under
_BY_ASKER = ("causal_conv1d_fn", "causal_conv1d_update", "mamba_inner_fn", "mamba_split_conv1d_scan_combined")


def _find(name, module):
    return getattr(import_module(sources(module)[name], __package__), name)


def _getter(module):
    """What is called where a module does not have a name in its dictionary."""
    known = sources(module)

    def find(name):
        if name in known and name in _BY_ASKER:
            for_models = import_module(".transformers", __package__)
            return for_models.FUNCTIONS[name] if for_models.is_asking(1) else _find(name, module)
        if _is_import_of_a_name(sys._getframe(1)):
            raise ImportError(_missing(module, name), name=module)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

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


@functools.cache
def _missing(module, name):
    """Says, with a warning at the first time, that a name is not here: what asks for it may go on without a word."""
    package = module.partition(".")[0]
    there = ", ".join(sorted(sources(module))) or "modules only"
    what = f"statescan stands in for {package}, and has no {module}.{name} ({module} has: {there})"
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
        if module.__name__ == package:
            module.__version__ = VERSIONS[package]
        names = sources(module.__name__)
        module.__all__ = sorted(names)
        module.__getattr__ = _getter(module.__name__)
        vars(module).update({name: _find(name, module.__name__) for name in names if name not in _BY_ASKER})


class _BeforeBroken(MetaPathFinder):
    """Finds the stand-ins of packages that are installed and cannot be imported; it is asked first."""

    def find_spec(self, fullname, path=None, target=None):
        return _STAND_INS.find_spec(fullname, path, target) if fullname.partition(".")[0] in replacing.BROKEN else None


_STAND_INS = _StandIns()
_BEFORE_BROKEN = _BeforeBroken()


class Installation:
    """What a call of `install` has done. As a context manager, or by `undo`, it is put back: what earlier calls did stays."""

    def __init__(self, finders, replaced):
        self._finders, self._replaced = finders, replaced

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.undo()

    def undo(self):
        """Puts everything back; stand-ins that were imported stay with who has them."""
        replacing.put_back(self._replaced)
        for finder in self._finders:
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)
        gone = [p for p in VERSIONS if _STAND_INS in self._finders or (self._finders and p in replacing.BROKEN)]
        for package in gone:
            if _stands_in(sys.modules.get(package)):
                replacing.forget(package)
        self._finders, self._replaced = [], []


def _stands_in(module):
    return getattr(getattr(module, "__spec__", None), "loader", None) is _STAND_INS


def install(*, replace=False) -> Installation:
    """Lets code that imports the operations, layers, blocks or models of `mamba_ssm`, `causal_conv1d`, `lrnnx` or `nkilib` run on
    this package where those are not installed. What is not here fails to be imported, with a sentence that names what to install.

    Without `replace` it only adds an entry at the end of `sys.meta_path`: nothing is imported now, and a package that is
    installed is left alone. Call it before the code that imports them. Models of `transformers` look for them when their module
    is first imported.

    Args:
        replace: whether functions of packages that are installed run on this one, too, wherever they have been imported already.
            The packages are imported now. Their layers, norms and models stay what they are, with their parameters, and call
            these functions. A call that is not possible here is the package's, with one warning for each reason; what cannot be
            imported, as an extension or Triton is missing, is found here.

    Returns:
        A context manager, which undoes this call. It may be called again, and from several threads.
    """
    with replacing.LOCK:
        finders = [] if _STAND_INS in sys.meta_path else [_STAND_INS]
        sys.meta_path.extend(finders)
        replaced = replacing.replace(_STAND_INS) if replace else []
        if replacing.BROKEN and _BEFORE_BROKEN not in sys.meta_path:
            sys.meta_path.insert(0, _BEFORE_BROKEN)
            finders.append(_BEFORE_BROKEN)
    late = [name for name, module in sys.modules.items() if _chose_without(name, module)] if finders and not replaced else []
    if late:
        warnings.warn(f"install() came after the import of {', '.join(late)}, which will not use it", stacklevel=2)
    return Installation(finders, replaced)


class Report(dict):
    """What runs on what: words by the full names of functions and layers. It is printed one a line."""

    def __str__(self):
        return "\n".join(f"{name}: {words}" for name, words in self.items())


def report() -> Report:
    """What functions and layers of `mamba_ssm`, `causal_conv1d`, `lrnnx` and `nkilib` run on, if they are imported."""
    found = Report()
    for package in VERSIONS:
        module = sys.modules.get(package)
        if package in replacing.BROKEN and _BEFORE_BROKEN in sys.meta_path:
            found[package] = f"statescan; what is installed cannot be imported: {replacing.BROKEN[package]}"
        elif module is None:
            found[package] = "not imported"
        elif _stands_in(module):
            found[package] = f"statescan, which stands in for {VERSIONS[package].partition('+')[0]}"
        else:
            found[package] = f"installed, {getattr(module, '__version__', 'of an unknown version')}"
            found.update(replacing.described(package))
    return found


def _chose_without(name, module):
    """Whether a module of a model has looked for the packages already."""
    return name.startswith("transformers.models.") and hasattr(module, "causal_conv1d_fn")
