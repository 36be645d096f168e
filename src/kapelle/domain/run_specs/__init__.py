"""What may be asked of the patterns: one module for each."""

from kapelle.domain.run_specs.base import PatternSpec, RunCheck
from kapelle.domain.run_specs.best_of import BestOfSpec, CandidateSpec
from kapelle.domain.run_specs.loop import LoopSpec
from kapelle.domain.run_specs.pipeline import PipelineSpec, StepSpec
from kapelle.domain.run_specs.team import TeamSpec

__all__ = [
    "BestOfSpec", "CandidateSpec", "LoopSpec", "PatternSpec", "PipelineSpec", "RunCheck",
    "StepSpec", "TeamSpec",
]  # fmt: skip
