"""Modules that check their inputs once for each structure and shapes."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import nn

from fgnn.graph import FactorGraph, tracing
from fgnn.nn.backends.steps import under_way
from fgnn.nn.inputs import Widths, check_inputs, check_kinds, signature


class Checked(nn.Module):
    """A module on (graph, f, gs, edges) that says what it reads."""

    _checked: tuple[Any, ...] | None = None  # the signature of the last call

    @abstractmethod
    def _reads(self) -> tuple[Widths | None, torch.dtype | None]:
        """The lengths of the features that the module reads, None if not known; and its dtype."""

    def _check(self, graph: FactorGraph, f: Any, gs: Any, edges: Any) -> None:
        """Check the inputs at the first call with their structure, shapes and dtypes."""
        traced = tracing()
        if traced and under_way():  # the layers before have computed what this one reads
            return
        if not (traced or self._checked is None):
            try:
                if self._checked == signature(graph, f, gs, edges):
                    return
            except AttributeError:  # an argument of another kind, which the checks name
                pass
        check_kinds(graph, f, gs, edges)
        widths, dtype = self._reads()
        if widths is not None:
            check_inputs(graph, f, gs, edges, widths, dtype)
        if not traced:
            self._checked = signature(graph, f, gs, edges)

    def _named(self, error: ValueError, graph: FactorGraph, f: Any, gs: Any, edges: Any) -> ValueError:
        """The same error in the words of the checks, which know the groups."""
        self._checked = None
        try:
            self._check(graph, f, gs, edges)
        except ValueError as named:
            return named
        return error

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._checked = None  # the parameters may get another dtype
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
