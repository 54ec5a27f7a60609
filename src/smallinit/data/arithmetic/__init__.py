"""Arithmetic and word problems in English and Chinese, graded in difficulty, with worked solutions."""

from smallinit.data.arithmetic.problems import LEVELS, Problem, extract_answer, test_problems, train_documents

__all__ = ["LEVELS", "Problem", "extract_answer", "test_problems", "train_documents"]
