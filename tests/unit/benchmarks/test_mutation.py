"""Which wrong changes the mutation score is made of."""

import ast

from benchmarks.mutation import mutants_of

SOURCE = '''
LIMIT = 3

class Till:
    def room(self, gpus: int = 1) -> int:
        """Doc."""
        if not self.closed and gpus < LIMIT:
            return min(gpus, 2)
        self.ring()
        return [one for one in self.many if one]
'''


def changes() -> list[str]:
    return [str(mutant).partition(": ")[2] for mutant in mutants_of("till.py", SOURCE)]


def test_every_change_is_one_small_step_and_none_is_outside_a_function_s_body() -> None:
    assert sorted(changes()) == sorted(
        [
            "if not self.closed and gpus < LIMIT:  →  if not (not self.closed and gpus < LIMIT):",
            "not self.closed and gpus < LIMIT  →  not self.closed or gpus < LIMIT",
            "not self.closed  →  self.closed",
            "gpus < LIMIT  →  gpus <= LIMIT",
            "return min(gpus, 2)  →  return None",
            "min(gpus, 2)  →  max(gpus, 2)",
            "2  →  3",
            "self.ring()  →  pass",
            "return [one for one in self.many if one]  →  return None",
            " for one in self.many if one  →   for one in self.many",
        ]
    )


def test_a_mutant_is_the_module_with_that_change_alone_and_the_others_are_left_as_they_were() -> None:
    mutants = list(mutants_of("till.py", SOURCE))
    texts = [ast.unparse(mutant.tree()) for mutant in mutants]
    assert len(set(texts)) == len(texts)
    original = ast.unparse(ast.parse(SOURCE)).splitlines()
    for text in texts:
        changed = [line for line, other in zip(text.splitlines(), original, strict=True) if line != other]
        assert len(changed) == 1
    assert {(mutant.function, mutant.first_line) for mutant in mutants} == {("Till.room", 5)}
