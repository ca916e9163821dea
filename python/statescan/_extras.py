"""Words for what is not installed."""


def naming_torch(what, error):
    """The error for a part of this package that PyTorch is missing for, in the place of that of its import."""
    if error.name != "torch":
        return error
    return ImportError(f"{what} needs PyTorch: pip install 'statescan[torch]'", name="torch")
