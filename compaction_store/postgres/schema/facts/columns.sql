SELECT pg_catalog.format('column %s.%s', c.relname, a.attname), pg_catalog.concat_ws(' ',
    pg_catalog.format_type(a.atttypid, a.atttypmod),
    CASE WHEN a.attcollation NOT IN (0, t.typcollation) THEN 'collate ' || l.collname END,
    CASE WHEN a.attnotnull THEN 'not null' END,
    CASE WHEN a.attgenerated <> '' THEN 'generated as' WHEN a.attidentity <> '' THEN 'identity'
        WHEN d.adbin IS NOT NULL THEN 'default' END,
    pg_catalog.pg_get_expr(d.adbin, d.adrelid),
    CASE WHEN a.atthasdef <> (d.adbin IS NOT NULL) THEN 'not looked for' END)
FROM pg_catalog.pg_attribute AS a
JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_collation AS l ON l.oid = a.attcollation
LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE n.nspname = 'compaction_store' AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND a.attnum > 0 AND NOT a.attisdropped;
