"""Changes the planner's statistics, for tests of query plans."""

# Removes the statistics, as right after a bulk load, before the first autovacuum. Run it as a superuser and roll it
# back.
FORGET = """
    SET LOCAL allow_system_table_mods = on;
    DELETE FROM pg_statistic WHERE starelid IN (
        SELECT oid FROM pg_class WHERE relnamespace = 'compaction_store'::regnamespace);
    UPDATE pg_class SET reltuples = -1, relpages = 0, relallvisible = 0
    WHERE relnamespace = 'compaction_store'::regnamespace AND relkind IN ('r', 'i');
"""
