-- Flags in pg_class decide whether Postgres uses the triggers, indexes and checks of a table at all, so the queries
-- compare the flags with the objects that exist. The login that migrated owns the schema and Alembic's table. It may be
-- any member of the role that owns the other tables.
SELECT 'table ' || c.relname, pg_catalog.concat_ws(', ',
    CASE WHEN c.relkind IN ('r', 'p') THEN 'table' ELSE 'of kind ' || c.relkind::text END,
    CASE c.relpersistence WHEN 'p' THEN NULL ELSE 'persistence ' || c.relpersistence::text END,
    CASE WHEN c.relrowsecurity THEN 'row security' END, CASE WHEN c.relforcerowsecurity THEN 'forced' END,
    CASE WHEN NOT c.relhastriggers AND EXISTS (SELECT FROM pg_catalog.pg_trigger AS g WHERE g.tgrelid = c.oid)
        THEN 'triggers not looked for' END,
    CASE WHEN NOT c.relhasindex AND EXISTS (SELECT FROM pg_catalog.pg_index AS i WHERE i.indrelid = c.oid)
        THEN 'indexes not looked for' END,
    CASE WHEN c.relkind IN ('r', 'p') AND c.relchecks <> (
        SELECT count(*) FROM pg_catalog.pg_constraint AS k WHERE k.conrelid = c.oid AND k.contype = 'c'
    ) THEN 'checks not looked for' END,
    CASE WHEN NOT c.relispopulated THEN 'not populated' END,
    CASE WHEN c.reloftype <> 0 THEN 'of a type' END,
    CASE WHEN c.relkind = 'r' AND m.amname <> 'heap' THEN 'kept by ' || m.amname END)
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_am AS m ON m.oid = c.relam
WHERE n.nspname = 'compaction_store' AND c.relkind NOT IN ('i', 'I', 't') AND NOT c.relispartition
UNION ALL
SELECT 'owner of ' || o.name, pg_catalog.pg_get_userbyid(
    CASE WHEN pg_catalog.pg_has_role(o.owner, t.relowner, 'MEMBER') THEN t.relowner ELSE o.owner END)::text
FROM (
    SELECT 'the schema' AS name, n.nspowner AS owner
    FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'compaction_store'
    UNION ALL
    SELECT 'table alembic_version', c.relowner
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'compaction_store' AND c.relname = 'alembic_version'
) AS o
JOIN pg_catalog.pg_namespace AS n ON n.nspname = 'compaction_store'
JOIN pg_catalog.pg_class AS t ON t.relnamespace = n.oid AND t.relname = 'messages'
UNION ALL
SELECT 'owner of table ' || c.relname, pg_catalog.pg_get_userbyid(c.relowner)::text
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'compaction_store' AND c.relkind NOT IN ('i', 'I', 't') AND c.relname <> 'alembic_version'
    AND NOT c.relispartition;
