-- Storage parameters are left out of the definitions. A plain index, of an administrator for example, changes only the
-- speed of an answer. An index is not plain if a write may run foreign code through it or may leave it out: if it is
-- unique, has an expression or a condition, uses an operator class or another object that is not part of Postgres, or
-- is not kept up to date. `schema_check` also compares the plain ones that are shipped, because views read them.
SELECT CASE WHEN i.indisunique OR i.indpred IS NOT NULL OR s.flags <> '' THEN '' ELSE 'plain ' END
        || 'index ' || x.relname,
    pg_catalog.regexp_replace(pg_catalog.replace(
        pg_catalog.pg_get_indexdef(i.indexrelid), ' ON ONLY ', ' ON '), ' WITH \([^)]*\)', '') || s.flags
FROM pg_catalog.pg_index AS i
JOIN pg_catalog.pg_class AS c ON c.oid = i.indrelid
JOIN pg_catalog.pg_class AS x ON x.oid = i.indexrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT pg_catalog.concat(
        CASE WHEN i.indexprs IS NOT NULL THEN ', with an expression' END,
        -- pg_depend does not list Postgres's own objects.
        CASE WHEN EXISTS (
            SELECT FROM pg_catalog.pg_depend AS d
            WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = x.oid AND d.refclassid IN (
                'pg_catalog.pg_proc'::regclass, 'pg_catalog.pg_operator'::regclass,
                'pg_catalog.pg_opclass'::regclass, 'pg_catalog.pg_type'::regclass,
                'pg_catalog.pg_collation'::regclass)
        ) THEN ', with what is not part of Postgres' END,
        CASE WHEN NOT (i.indisvalid AND i.indisready AND i.indislive AND i.indimmediate) THEN ', invalid' END
    ) AS flags
) AS s
WHERE n.nspname = 'compaction_store' AND c.relkind IN ('r', 'p') AND NOT c.relispartition;
