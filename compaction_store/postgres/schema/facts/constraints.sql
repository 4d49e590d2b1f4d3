-- NOT NULL is part of the fact about the column, so it is left out here. Only Postgres 18 lists it as a constraint.
SELECT pg_catalog.format('constraint %s.%s', c.relname, k.conname), pg_catalog.concat_ws(', ',
    CASE k.contype WHEN 'c' THEN 'check ' || pg_catalog.pg_get_expr(k.conbin, k.conrelid)
        ELSE pg_catalog.pg_get_constraintdef(k.oid) END,
    CASE WHEN NOT k.convalidated THEN 'not valid' END,
    CASE WHEN pg_catalog.to_jsonb(k) ->> 'conenforced' = 'false' THEN 'not enforced' END,
    CASE WHEN k.contype = 'p' AND NOT (i.indisvalid AND i.indisready AND i.indislive AND i.indisunique
        AND i.indisprimary AND i.indimmediate) THEN 'invalid' END)
FROM pg_catalog.pg_constraint AS k
JOIN pg_catalog.pg_class AS c ON c.oid = k.conrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_index AS i ON i.indexrelid = k.conindid
WHERE n.nspname = 'compaction_store' AND k.contype <> 'n' AND NOT c.relispartition;
