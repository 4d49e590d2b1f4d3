SELECT pg_catalog.format('policy %s.%s', c.relname, p.polname), pg_catalog.concat_ws(', ',
    CASE WHEN p.polpermissive THEN 'permissive' ELSE 'restrictive' END, 'for ' || p.polcmd::text,
    CASE WHEN p.polroles = '{0}' THEN 'to all' ELSE 'to some' END,
    'using ' || pg_catalog.pg_get_expr(p.polqual, p.polrelid),
    'check ' || pg_catalog.pg_get_expr(p.polwithcheck, p.polrelid))
FROM pg_catalog.pg_policy AS p
JOIN pg_catalog.pg_class AS c ON c.oid = p.polrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'compaction_store' AND NOT c.relispartition;
