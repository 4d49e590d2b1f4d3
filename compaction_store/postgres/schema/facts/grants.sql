SELECT pg_catalog.format('grant on %s to %s', o.name,
        CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.pg_get_userbyid(a.grantee)::text END),
    pg_catalog.string_agg(
        DISTINCT a.privilege_type || CASE WHEN a.is_grantable THEN ' with grant option' ELSE '' END, ', ')
FROM (
    SELECT c.relname::text AS name, c.relowner AS owner,
        coalesce(c.relacl, pg_catalog.acldefault('r', c.relowner)) AS acl
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'compaction_store' AND c.relkind NOT IN ('i', 'I', 't', 'c')
        AND NOT c.relispartition
    UNION ALL
    SELECT pg_catalog.format('%s.%s', c.relname, t.attname), c.relowner, t.attacl
    FROM pg_catalog.pg_attribute AS t JOIN pg_catalog.pg_class AS c ON c.oid = t.attrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'compaction_store' AND t.attacl IS NOT NULL AND NOT t.attisdropped
        AND NOT c.relispartition
    UNION ALL
    SELECT p.proname || '()', p.proowner,
        coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))
    FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
    WHERE n.nspname = 'compaction_store'
    UNION ALL
    SELECT 'the schema', n.nspowner, coalesce(n.nspacl, pg_catalog.acldefault('n', n.nspowner))
    FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'compaction_store'
) AS o
CROSS JOIN LATERAL pg_catalog.aclexplode(o.acl) AS a
WHERE a.grantee <> o.owner
GROUP BY o.name, a.grantee;
