"""deepreduce.outer: outer loops, training over slow links. Imported on request; it needs torch.

Each worker trains `every` steps alone. Then the workers exchange how far their weights moved, compressed, and all continue
from the same weights (docs/OUTER.md).

    outer = deepreduce.outer.Outer(model, "sparseloco", every=30)
    …
    inner.step()
    outer.step()

Outer    the loop of a worker, over a group of torch.distributed or a Folder
Folder   a folder that workers share; they may join and leave
Round, OuterInfo  the statistics of Outer.info
TopKCompressor  for programs that call the TopKCompressor of SparseLoCo's published code
"""

from ._folder import Folder
from ._outer import Outer
from ._round import OuterInfo, Round
from ._topk_compressor import TopKCompressor

__all__ = ["Folder", "Outer", "OuterInfo", "Round", "TopKCompressor"]
