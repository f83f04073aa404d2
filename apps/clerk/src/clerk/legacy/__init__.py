"""Moving from clerk's older designs: their tables are imported, and the sites that were stuck in them go on."""

from clerk.legacy.importing import Finished, Imported, finish_import, import_legacy
from clerk.legacy.stuck import Migrated, Stuck, migrate_stuck_sites

__all__ = ["Finished", "Imported", "Migrated", "Stuck", "finish_import", "import_legacy", "migrate_stuck_sites"]
