"""The command `specdec-jax`: the only part of the package that prints."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    The status is 0 if all went well, 1 where the model's numbers failed, 2 for what the
    user can put right, 130 after Ctrl-C.

    Args:
        arguments: instead of those of the process.
    """
    try:
        from specdec_jax.cli._main import run
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "tyro"):
            raise
        print(
            f"error: the command line needs the package {error.name}: "
            "pip install 'specdec-jax[cli,hub]'",
            file=sys.stderr,
        )
        sys.exit(2)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))
