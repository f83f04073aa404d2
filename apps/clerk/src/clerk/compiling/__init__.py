"""All text of a site as one searchable database, `meetings.db`; and all sites as one."""

from clerk.compiling.building import Compiled, compile_site
from clerk.compiling.full import build_full, write_sites
from clerk.compiling.merging import merge_extractions
from clerk.compiling.pages import page_id

__all__ = ["Compiled", "build_full", "compile_site", "merge_extractions", "page_id", "write_sites"]
