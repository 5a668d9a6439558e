"""The functions of torch that the library replaces in a process stay replaced, and each model replaces them again."""

from __future__ import annotations

from tests.parallel.torch.ranks import Ranks


def skipped_by_the_compiler() -> list[int]:
    from torch._dynamo import trace_rules

    import herringbone_parallel
    from herringbone_parallel.torch.model_parallel.runtime.bypasses import serve_bypasses

    counts = []
    for _ in range(2):
        serve_bypasses()
        counts.append(sum(str(herringbone_parallel.__path__[0]) in path for path in trace_rules.SKIP_DIRS))
    return counts


def test_the_compiler_skips_this_library_by_one_rule(ranks: Ranks) -> None:
    """Regression: each model added a rule. The thousandth model of a process waited a second for the compiler."""
    assert ranks.run(skipped_by_the_compiler, {"partitions": 1}) == [[1, 1]]
