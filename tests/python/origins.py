"""Signatures in the source of the packages that we stand in for, which is read and not run: `.ci/peers.sh` fetches it."""

import ast
import pathlib
import sys
import tarfile

FOLDER = pathlib.Path(sys.prefix) / "peers"


def sources():
    """Modules of the packages in the folder: their text, and whether they have others below them."""
    found = {}
    for path in FOLDER.glob("*.tar.gz"):
        with tarfile.open(path) as archive:
            for member in archive:
                _, *parts = pathlib.PurePath(member.name.removesuffix(".py")).parts
                if member.name.endswith(".py") and parts:
                    name = ".".join(parts).removesuffix(".__init__")
                    found[name] = archive.extractfile(member).read().decode(), parts[-1] == "__init__"
    return found


class Origin:
    """The definitions of modules."""

    def __init__(self):
        self.sources = sources()

    def find(self, module, name):
        """The definition of a name, also of one that a module imports; None where there is none."""
        if module not in self.sources:
            return None
        text, is_package = self.sources[module]
        nodes = list(ast.walk(ast.parse(text)))
        for node in nodes:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
                return node
        for node in nodes:
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                if name == (alias.asname or alias.name):
                    above = module.split(".")[: None if is_package else -1] if node.level else []
                    above = above[: len(above) - max(0, node.level - 1)]
                    return self.find(".".join([*above, *([node.module] if node.module else [])]), alias.name)
        return None


def methods(node):
    """The public methods of a class, its constructor among them."""
    functions = [function for function in node.body if isinstance(function, ast.FunctionDef)]
    return {function.name: function for function in functions if function.name == "__init__" or function.name[0] != "_"}


def fields(node):
    """Names and defaults of a class of data."""
    return [(field.target.id, field.value) for field in node.body if isinstance(field, ast.AnnAssign)]


def parameters(function):
    """Names and defaults of a function's parameters; names of those that take any number start with stars."""
    given = function.args
    defaults = [None] * (len(given.args) - len(given.defaults)) + given.defaults
    found = [(parameter.arg, default) for parameter, default in zip(given.args, defaults)]
    assert not given.posonlyargs and not given.kwonlyargs, function.name
    more = [(stars + parameter.arg, None) for stars, parameter in (("*", given.vararg), ("**", given.kwarg)) if parameter]
    return found + more
