# The public names of `compaction_store.importers`, and the module of each.

from compaction_store.importers.formats import FORMATS as FORMATS
from compaction_store.importers.formats import detect as detect
from compaction_store.importers.formats import open_source as open_source
from compaction_store.importers.running import Progress as Progress
from compaction_store.importers.running import ThreadImported as ThreadImported
from compaction_store.importers.running import import_into as import_into
from compaction_store.importers.running import import_into_async as import_into_async
from compaction_store.importers.sources import Bad as Bad
from compaction_store.importers.sources import Item as Item
from compaction_store.importers.sources import Notes as Notes
from compaction_store.importers.sources import Source as Source
from compaction_store.importers.sources import SourceThread as SourceThread
