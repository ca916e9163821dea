"""Functions of installed packages, run by ours wherever they have been imported.

A Python function keeps its identity and is given other code, which calls ours: whoever holds it, another module, a closure or an
object that was made before, runs that. A function of another kind is exchanged in the modules that have it. Layers, norms and
models of the packages are left alone: they call these functions.
"""

import functools
import importlib.util
import inspect
import pkgutil
import sys
import threading
import types
import warnings
from importlib import import_module

from .. import _dispatch
from ._names import MODULES, PACKAGES, VERSIONS, sources

# guards what follows; calls do not take it
LOCK = threading.RLock()
# functions that were replaced by their full names
_REPLACED = {}
# methods of layers that call no function of their package for what is done here, and our functions
_METHODS = {"lrnnx.models.lti.lru": ("LRU.forward", ".lrnnx_rules", "lru_forward")}
# why an installed package cannot be imported
BROKEN = {}


class _Replaced:
    """A function of a package and ours."""

    def __init__(self, name, original, ours):
        self.name, self.function, self.ours = name, original, ours
        # calls that ours refused
        self.refused = set()
        self.code = None
        self.original = original
        if isinstance(original, types.FunctionType) and not original.__code__.co_freevars:
            self.code = original.__code__
            self.original = _copy(original)
        else:
            self.replacement = functools.wraps(original)(lambda *arguments, **options: call(name, arguments, options))

    def put(self):
        """Lets calls find this, which is in `_REPLACED`."""
        if self.code is None:
            _exchange(self.function, self.replacement)
        else:
            self.function.__signature__ = inspect.signature(self.function)
            self.function.__code__ = _code_of_call(self.name, self.code)

    def undo(self):
        if self.code is None:
            _exchange(self.replacement, self.function)
        else:
            self.function.__code__ = self.code
            del self.function.__signature__


def _exchange(old, new):
    """Puts one function in the place of another in all modules that have it."""
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, name, new)


def _copy(function):
    """A function of its own with the code as it is."""
    code, defaults = function.__code__, function.__defaults__
    copied = types.FunctionType(code, function.__globals__, function.__name__, defaults)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _by_name(*arguments, **options):
    from statescan.compat._replacing import call

    return call("the name", arguments, options)


def _code_of_call(name, code):
    """The code of a function that is `call` with a name."""
    constants = tuple(name if constant == "the name" else constant for constant in _by_name.__code__.co_consts)
    return _by_name.__code__.replace(co_consts=constants, co_name=code.co_name)


def call(name, arguments, options):
    """Calls our function, and the package's where ours refuses; that is said once for each reason."""
    replaced = _REPLACED.get(name)
    if replaced is None:
        # it has just been put back by another thread
        return pkgutil.resolve_name(name)(*arguments, **options)
    torch = sys.modules["torch"]
    if torch.compiler.is_compiling():
        return replaced.ours(*arguments, **options)
    try:
        return replaced.ours(*arguments, **options)
    except torch.OutOfMemoryError:
        raise
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        return _by_original(replaced, error, arguments, options)


def _by_original(replaced, error, arguments, options):
    """The result of the original for a call that ours refused, before it had written anything."""
    try:
        result = replaced.original(*arguments, **options)
    except Exception:
        raise error from None
    reason = str(error)
    if reason not in replaced.refused:
        replaced.refused.add(reason)
        warnings.warn(f"{replaced.name} runs as it is installed: {reason}", stacklevel=4)
    return result


def installed(package, stand_ins):
    """Whether a package is there that is not one of our stand-ins."""
    known = sys.modules.get(package)
    spec = getattr(known, "__spec__", None) if known is not None else importlib.util.find_spec(package)
    return spec is not None and spec.loader is not stand_ins


def replace(stand_ins):
    """Replaces what is not replaced yet; packages that cannot be imported are put into `BROKEN`."""
    made = []
    with LOCK:
        for package in PACKAGES:
            if package in BROKEN or not installed(package, stand_ins):
                continue
            try:
                import_module(package)
            except (ImportError, OSError, RuntimeError) as error:
                # an extension, Triton or its driver is missing
                BROKEN[package] = f"{type(error).__name__}: {error}"
                forget(package)
                continue
            if package not in VERSIONS:
                # a compiled module, whose functions the package's own ones call
                continue
            for module in (module for module in MODULES if module.partition(".")[0] == package):
                made += _replace_in(module)
            made += _fill(package) + _replace_methods(package)
        if made:
            torch = sys.modules["torch"]
            for tensor in (torch.empty(0), torch.nn.Parameter(torch.empty(0))):
                # the compiler does not trace the import that a first call makes
                _dispatch.framework_of("install", "replace", tensor)


def forget(package):
    """Drops the modules of a package, so that they are found anew."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def _replace_in(module):
    try:
        there = import_module(module)
    except ImportError:
        return []
    made = []
    for name, source in sources(module).items():
        original = vars(there).get(name)
        full = f"{getattr(original, '__module__', None)}.{getattr(original, '__name__', name)}"
        if original is None or inspect.isclass(original) or name.endswith("_ref") or full in _REPLACED:
            continue
        ours = getattr(import_module(source, __package__), name)
        if inspect.isfunction(ours) and source not in (".models", ".generation", ".ssd_parts"):
            _REPLACED[full] = _Replaced(full, original, ours)
            _REPLACED[full].put()
            made.append(full)
    return made


def _replace_methods(package):
    made = []
    for module, (method, source, name) in _METHODS.items():
        full = f"{module}.{method}"
        if module.partition(".")[0] != package or full in _REPLACED:
            continue
        try:
            original = pkgutil.resolve_name(full)
        except (AttributeError, ImportError):
            continue
        _REPLACED[full] = _Replaced(full, original, getattr(import_module(source, __package__), name))
        _REPLACED[full].put()
        made.append(full)
    return made


class _Filled:
    """A name that a module of a package has without a function, as another package was missing when it was imported."""

    def __init__(self, module, name, ours):
        self.module, self.name, self.ours, self.refused = module, name, ours, set()
        setattr(module, name, ours)

    def undo(self):
        setattr(self.module, self.name, None)


def _fill(package):
    # a compiled module has the name of a function that stands before it, with other arguments
    wanted = {
        name: source
        for module in reversed(MODULES)
        for name, source in sources(module).items()
        if name.endswith(("_fn", "_update"))
    }
    made = []
    for path, module in list(sys.modules.items()):
        if path.partition(".")[0] != package:
            continue
        for name in [name for name, value in vars(module).items() if value is None and name in wanted]:
            full = f"{path}.{name}"
            _REPLACED[full] = _Filled(module, name, getattr(import_module(wanted[name], __package__), name))
            made.append(full)
    return made


def put_back():
    """Undoes `replace`."""
    with LOCK:
        for name in list(_REPLACED):
            _REPLACED[name].undo()
            del _REPLACED[name]


def described(package):
    """Words by the names of an installed package, which say what runs on what."""
    found = {}
    for module in (module for module in MODULES if module.partition(".")[0] == package):
        there = sys.modules.get(module)
        for name in sources(module):
            value = vars(there).get(name) if there is not None else None
            if value is None:
                continue
            full = f"{getattr(value, '__module__', None)}.{getattr(value, '__name__', name)}"
            replaced = _REPLACED.get(full) or _REPLACED.get(f"{module}.{name}")
            if replaced is not None:
                found[full] = "statescan" + "".join(f"; as installed where {reason}" for reason in sorted(replaced.refused))
            else:
                found[full] = "as installed" + (", on functions of statescan" if inspect.isclass(value) and _REPLACED else "")
    return found
