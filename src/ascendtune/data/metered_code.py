"""Compiles chat templates to Python code that meters its operators; the limits are in `limits.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators

_PARTS_OF_A_SUM = 8
"""A sum of more parts is measured after it is computed."""


class MeteringCodeGenerator(CodeGenerator):
    """Compiles templates whose operators call the methods of `LimitedEnvironment`.

    `+` is the most frequent operator in templates, and is compiled without Jinja's table of operators.
    """

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        parts: list[nodes.Expr] = [node.right]
        left: nodes.Expr = node.left
        while isinstance(left, nodes.Add) and len(parts) < _PARTS_OF_A_SUM:
            parts.append(left.right)
            left = left.left
        self.write("environment.plus((")
        for each in (left, *reversed(parts)):
            self.visit(each, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        operands = [node.expr, *(operand.expr for operand in node.ops)]
        has_in = any(operand.op in ("in", "notin") for operand in node.ops)
        if not has_in and any(isinstance(each, nodes.Const) for each in operands):
            # The comparison ends at the end of the shorter text, and a constant is short.
            super().visit_Compare(node, frame)
            return
        self.write("(")
        self._visit_compared(node.expr, frame)
        for operand in node.ops:
            self.write(f" {operators[operand.op]} ")
            self._visit_compared(operand.expr, frame)
        self.write(")")

    def _visit_compared(self, node: nodes.Expr, frame: Frame) -> None:
        if isinstance(node, nodes.Const):
            self.visit(node, frame)
        else:
            self._visit_in_call("compared", self.visit, node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self._visit_in_call("sliced", super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._visit_in_call("made", super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._visit_in_call("made", super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._visit_in_call("made", super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def _visit_in_call(self, method: str, visit: Callable[[Any, Frame], None], node: nodes.Expr, frame: Frame) -> None:
        self.write(f"environment.{method}(")
        visit(node, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.joined((")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("))")
