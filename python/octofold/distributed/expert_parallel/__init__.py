"""Experts that are spread over the ranks of a group (expert parallelism).

Tokens travel to their experts as FP8 codes with scales, by torch.distributed; or they come and go
by DeepEP (`deepep`).
"""

from .experts import experts as experts
from .modules import ExpertParallel as ExpertParallel
from .modules import ParallelExperts as ParallelExperts
from .modules import parallelize_experts as parallelize_experts
