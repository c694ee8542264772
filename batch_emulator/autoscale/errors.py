"""What can be wrong with a formula, told with line and column as the service tells it."""

from __future__ import annotations


class FormulaError(Exception):
    """A formula is wrong at a character; `code` and `message` are those of the answer."""

    code = "AutoScalingFormulaEvaluationError"
    message = "Autoscale evaluation failed due to an error in the formula"

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at
        self.reason = reason

    def detail(self, text: str) -> str:
        """The reason with its place in the formula (docs: "Line 15, Col 44: Insufficient ...")."""
        line = text.count("\n", 0, self.at) + 1
        column = self.at - (text.rfind("\n", 0, self.at) + 1) + 1
        return f"Line {line}, Col {column}: {self.reason}"


class FormulaSyntaxError(FormulaError):
    """The text is no formula."""

    code = "AutoScalingFormulaSyntaxError"
    message = "The specified auto-scaling formula has a syntax error."


class FormulaTooLongError(FormulaError):
    """The text has more characters than a formula may have."""

    code = "AutoScaleFormulaTooLong"
    message = "The specified auto-scaling formula exceeds the maximum length of 8192 characters."


class InsufficientSampleError(FormulaError):
    """Fewer samples are there than the formula wants."""

    code = "InsufficientSampleData"
    message = "Autoscale evaluation failed due to insufficient sample data"
