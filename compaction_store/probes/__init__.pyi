# The public names of `compaction_store.probes`, and the module of each.

from compaction_store.models.probe import PROBE_TYPES as PROBE_TYPES
from compaction_store.models.probe import Place as Place
from compaction_store.models.probe import Probe as Probe
from compaction_store.models.probe import ProbeType as ProbeType
from compaction_store.probes.facts import Planted as Planted
from compaction_store.probes.facts import ThreadFacts as ThreadFacts
from compaction_store.probes.facts import ThreadMessage as ThreadMessage
from compaction_store.probes.thread_probe import Fold as Fold
from compaction_store.probes.thread_probe import ThreadProbe as ThreadProbe
