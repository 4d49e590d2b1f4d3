SELECT 'definition of view ' || c.relname,
    coalesce(pg_catalog.array_to_string(c.reloptions, ', '), 'no options') || '; '
        || pg_catalog.pg_get_viewdef(c.oid)
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'compaction_store' AND c.relkind = 'v';
