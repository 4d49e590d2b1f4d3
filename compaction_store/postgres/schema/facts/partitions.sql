-- Postgres makes sure that a partition has the columns, checks and keys of its table. This query reads the properties
-- that may differ: one fact for each partition, with its bounds, its triggers, and everything that only it has.
SELECT pg_catalog.format('partition %s.%s of %s', n.nspname, c.relname, p.relname), pg_catalog.concat_ws(', ',
    pg_catalog.pg_get_expr(c.relpartbound, c.oid),
    'triggers ' || coalesce((
        SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', g.tgname, g.tgenabled::text, g.tgtype::text,
            f.pronamespace::regnamespace::text || '.' || f.proname,
            CASE WHEN g.tgqual IS NOT NULL OR g.tgattr::text <> '' OR g.tgnargs > 0 OR g.tgisinternal
                OR g.tgdeferrable THEN 'changed' END), '; ' ORDER BY g.tgname)
        FROM pg_catalog.pg_trigger AS g JOIN pg_catalog.pg_proc AS f ON f.oid = g.tgfoid
        WHERE g.tgrelid = c.oid), 'none'),
    CASE WHEN c.relkind <> 'r' THEN 'of kind ' || c.relkind::text END,
    CASE WHEN c.relpersistence <> 'p' THEN 'persistence ' || c.relpersistence::text END,
    CASE WHEN m.amname <> 'heap' THEN 'kept by ' || m.amname END,
    CASE WHEN c.relowner <> p.relowner THEN 'belongs to ' || pg_catalog.pg_get_userbyid(c.relowner) END,
    CASE WHEN NOT c.relhastriggers THEN 'triggers not looked for' END,
    CASE WHEN NOT c.relhasindex THEN 'indexes not looked for' END,
    CASE WHEN c.relchecks <> p.relchecks THEN 'checks not looked for, or of its own' END,
    CASE WHEN EXISTS (
        SELECT FROM pg_catalog.aclexplode(c.relacl) AS a WHERE a.grantee <> c.relowner
    ) OR EXISTS (
        SELECT FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = c.oid AND a.attacl IS NOT NULL
    ) THEN 'granted' END,
    CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_policy AS y WHERE y.polrelid = c.oid) THEN 'with a policy' END,
    CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_rewrite AS r WHERE r.ev_class = c.oid) THEN 'with a rule' END,
    CASE WHEN EXISTS (
        SELECT FROM pg_catalog.pg_constraint AS k
        WHERE k.conrelid = c.oid AND k.contype <> 'n' AND (k.coninhcount = 0 OR NOT k.convalidated)
    ) THEN 'with a constraint of its own' END,
    CASE WHEN EXISTS (
        SELECT FROM pg_catalog.pg_attrdef AS d
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        WHERE d.adrelid = c.oid AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_attrdef AS t
            JOIN pg_catalog.pg_attribute AS b ON b.attrelid = t.adrelid AND b.attnum = t.adnum
            WHERE t.adrelid = p.oid AND b.attname = a.attname
                AND pg_catalog.pg_get_expr(t.adbin, t.adrelid) = pg_catalog.pg_get_expr(d.adbin, d.adrelid))
    ) THEN 'with a default of its own' END,
    CASE WHEN EXISTS (
        SELECT FROM pg_catalog.pg_index AS i WHERE i.indrelid = c.oid AND (
            NOT (i.indisvalid AND i.indisready AND i.indislive AND i.indimmediate)
            OR (i.indisunique OR i.indexprs IS NOT NULL OR i.indpred IS NOT NULL) AND NOT EXISTS (
                SELECT FROM pg_catalog.pg_inherits AS h JOIN pg_catalog.pg_index AS o ON o.indexrelid = h.inhparent
                WHERE h.inhrelid = i.indexrelid AND o.indkey::text = i.indkey::text
                    AND pg_catalog.pg_get_expr(o.indpred, o.indrelid)
                        IS NOT DISTINCT FROM pg_catalog.pg_get_expr(i.indpred, i.indrelid)))
    ) THEN 'with an index of its own, or an invalid one' END)
FROM pg_catalog.pg_inherits AS e
JOIN pg_catalog.pg_class AS c ON c.oid = e.inhrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class AS p ON p.oid = e.inhparent
JOIN pg_catalog.pg_namespace AS o ON o.oid = p.relnamespace
LEFT JOIN pg_catalog.pg_am AS m ON m.oid = c.relam
WHERE c.relispartition AND 'compaction_store' IN (n.nspname, o.nspname) AND c.relkind NOT IN ('i', 'I')
UNION ALL
SELECT 'partition key of ' || c.relname, pg_catalog.pg_get_partkeydef(c.oid)
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'compaction_store' AND c.relkind = 'p';
