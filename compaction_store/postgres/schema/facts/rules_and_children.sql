SELECT pg_catalog.format('rule %s.%s', c.relname, r.rulename), 'on ' || r.ev_type::text
FROM pg_catalog.pg_rewrite AS r
JOIN pg_catalog.pg_class AS c ON c.oid = r.ev_class
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'compaction_store' AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
    AND r.rulename <> '_RETURN'
UNION ALL
SELECT pg_catalog.format('inheritance of %s.%s from %s', cn.nspname, c.relname, p.relname), 'there'
FROM pg_catalog.pg_inherits AS i
JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
JOIN pg_catalog.pg_namespace AS cn ON cn.oid = c.relnamespace
JOIN pg_catalog.pg_class AS p ON p.oid = i.inhparent
JOIN pg_catalog.pg_namespace AS pn ON pn.oid = p.relnamespace
WHERE 'compaction_store' IN (cn.nspname, pn.nspname) AND c.relkind <> 'i' AND NOT c.relispartition;
