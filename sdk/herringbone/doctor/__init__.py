"""Examine this machine: what local jobs and each kind of backend need, with one remedy for each finding.

from herringbone.doctor import examine

for check in examine():
    print(check.name, check.state.value, check.finding, check.fix)

probes.py -> facts.py -> judgement.py -> Check
thin         data        pure
"""

from herringbone.doctor.examination import examine
from herringbone.doctor.judgement import Check, State, ready

__all__ = ["Check", "State", "examine", "ready"]
