"""Signatures in the source of the packages that we stand in for, which is read and not run: `.ci/peers.sh` fetches it."""

import ast
import pathlib
import sys
import tarfile
import zipfile

FOLDER = pathlib.Path(sys.prefix) / "peers"


def files():
    """Paths and texts of modules in the packages of the folder: source distributions, all below one folder, and wheels."""
    for path in FOLDER.glob("*.tar.gz"):
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name.endswith(".py"):
                    yield pathlib.PurePath(member.name).parts[1:], archive.extractfile(member).read()
    for path in FOLDER.glob("*.whl"):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".py"):
                    yield pathlib.PurePath(name).parts, archive.read(name)


def sources():
    """Modules of the packages in the folder: their text, and whether they have others below them."""
    found = {}
    for parts, text in files():
        name = ".".join(parts).removesuffix(".py").removesuffix(".__init__")
        found[name] = text.decode(), parts[-1] == "__init__.py"
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
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and isinstance(node.value, ast.Name):
                return self.find(module, node.value.id)
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
