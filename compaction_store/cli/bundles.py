"""The declarations of all commands: options, bundles of options, and exit codes."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any, ClassVar, get_origin, get_type_hints

import typer
from typer.models import ParameterInfo

from compaction_store import errors
from compaction_store.audit.safe_text import shown
from compaction_store.module_data import ModuleData

_TEXTS = ModuleData(__file__).values
EXIT_CODES = "\b\n" + _TEXTS.pop("exit_codes")
# The help texts of parameters: of one command, by its function, or shared.
_HELP: dict[str, dict[str, str]] = _TEXTS


class Bundle:
    """The base class of bundles. The fields of a subclass are its options: the annotation and default of each."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    @classmethod
    def options(cls) -> dict[str, tuple[Any, Any]]:
        """Returns the annotation and the default of each option by the name of its parameter."""
        hints = get_type_hints(cls, include_extras=True)
        return {name: (kind, getattr(cls, name)) for name, kind in hints.items() if get_origin(kind) is not ClassVar}


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command with the options of each bundle in place of the bundle, and with all help texts."""
    hints = get_type_hints(command, include_extras=True)
    own = _HELP.get(command.__name__, {})
    bundles: dict[str, type[Bundle]] = {}
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        kind = hints[parameter.name]
        if isinstance(kind, type) and issubclass(kind, Bundle):
            bundles[parameter.name] = kind
            parts = [(name, *part) for name, part in kind.options().items()]
        else:
            parts = [(parameter.name, kind, parameter.default)]
        for name, its_kind, default in parts:
            for info in (default, *getattr(its_kind, "__metadata__", ())):
                if isinstance(info, ParameterInfo) and info.help is None:
                    info.help = own.get(name) or _HELP["shared"][name]
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, annotation=its_kind, default=default))
    if not bundles:
        return command

    def run(**values: Any) -> None:
        made = {name: bundle(**{key: values.pop(key) for key in bundle.options()}) for name, bundle in bundles.items()}
        command(**values, **made)

    run.__name__ = command.__name__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


def option(spelled: str, help: str | None = None, default: Any = ..., **more: Any) -> Any:  # noqa: A002 — as typer names it
    """Returns an option that is spelled as in a help text, such as `--limit N`. Without `help`, it is in the TOML."""
    name, _, metavar = spelled.partition(" ")
    return typer.Option(default, name, metavar=metavar or None, help=help, **more)


def argument(spelled: str, help: str | None = None, default: Any = ..., **more: Any) -> Any:  # noqa: A002 — as typer names it
    """Returns an argument that is spelled as in a help text, such as `THREAD` or `[THREAD]`."""
    return typer.Argument(default, metavar=spelled, help=help, **more)


# ---- exit codes, which are part of the public interface, and the error for a wrong call


REFUSED = 1
MISUSED = 2
NO_DATABASE = 3
UNKNOWN = 4
INTERRUPTED = 130
BROKEN_PIPE = 141


def exit_code(error: errors.CompactionStoreError) -> int:
    if isinstance(error, errors.OutcomeUnknown):
        return UNKNOWN
    # An invalid checkpoint is a finding about the data, not a wrong call.
    if isinstance(error, errors.InvalidInput) and not isinstance(error, errors.InvalidCheckpoint):
        return MISUSED
    return NO_DATABASE if isinstance(error, errors.DatabaseError | errors.NotConfigured) else REFUSED


def misuse(text: str, option: str) -> typer.BadParameter:
    """Returns the error for a wrong option or argument, "Invalid value for OPTION: TEXT"."""
    return typer.BadParameter(shown(text), param_hint=f"'{option}'")
