"""The checkpoint hook: what a training script embeds so that its GPUs can be recalled without losing work.

Standard library only, Python 3.9 and newer, imports nothing else of gpubank: `gpubank hook export` writes the whole
package as one file for training images that have neither. `Hook` in `gpubank.hook.training` is where to start.
"""

from gpubank.hook.desk import Answer
from gpubank.hook.protocol import Request, RequestRefusedError
from gpubank.hook.store import Checkpoint
from gpubank.hook.training import Hook, Save

__all__ = ["Answer", "Checkpoint", "Hook", "Request", "RequestRefusedError", "Save"]
