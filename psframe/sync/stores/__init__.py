"""Table of stores (:data:`TABLE`): parameters that ranks read and change without waiting for each other.

==========  ================================================================  ======================
name        location                                                          reach
==========  ================================================================  ======================
``shared``  memory mapped by the ranks of a node                              one node
``window``  rank 0's memory, by MPI's one-sided operations (passive target)   any number of nodes
==========  ================================================================  ======================
"""

from psframe.config.registry import Table

TABLE: Table = {"shared": "psframe.sync.stores.shared:SharedStore", "window": "psframe.sync.stores.window:WindowStore"}
