"""Mistakes in psframe's own code, for as long as a context lasts (:class:`Mistake`)."""

import inspect
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Mistake:
    """A function in which ``right`` is replaced by ``wrong``.

    Attributes
    ----------
    where : str
        ``module:Class.method``, without psframe.
    modes : str
        Word of the promises that it breaks.
    """

    where: str
    right: str
    wrong: str
    modes: str

    def __str__(self):
        return f"{self.where.rpartition(':')[2]}: {self.right.strip()} -> {self.wrong.strip() or 'nothing'}"

    @contextmanager
    def made(self):
        """Put the mistake into the function, whoever has imported it."""
        function = self._function()
        before = function.__code__
        function.__code__ = self._mistaken(function)
        try:
            yield
        finally:
            function.__code__ = before

    def _function(self):
        module, _, path = self.where.partition(":")
        found = import_module(f"psframe.{module}")
        for name in path.split("."):
            found = inspect.getattr_static(found, name)
        return getattr(found, "fget", found)

    def _mistaken(self, function):
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.right) == 1, (self.where, self.right, source)
        source = source.replace(self.right, self.wrong)
        free = function.__code__.co_freevars  # __class__, of super()
        made = f"def outer({', '.join(free)}):\n{textwrap.indent(source, '    ')}\n    return {function.__name__}"
        module = inspect.getmodule(function)
        made = compile("from __future__ import annotations\n" + made, function.__code__.co_filename, "exec")
        space = dict(vars(module))
        exec(made, space)
        mistaken = space["outer"](*free)
        return getattr(mistaken, "fget", mistaken).__code__
