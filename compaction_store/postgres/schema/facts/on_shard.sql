SELECT pg_catalog.concat_ws(', ', CASE WHEN c.relrowsecurity THEN 'row security' ELSE 'no row security' END,
        CASE WHEN c.relforcerowsecurity THEN 'forced' END,
        CASE WHEN NOT c.relhastriggers THEN 'triggers not looked for' END)
    || '; policies ' || coalesce((
        SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', p.polname,
            CASE WHEN NOT p.polpermissive THEN 'restrictive' END, p.polcmd::text,
            CASE WHEN p.polroles <> '{0}' THEN 'to some' END,
            'using ' || pg_catalog.pg_get_expr(p.polqual, p.polrelid),
            'check ' || pg_catalog.pg_get_expr(p.polwithcheck, p.polrelid)), '; ' ORDER BY p.polname)
        FROM pg_catalog.pg_policy AS p WHERE p.polrelid = c.oid), 'none')
    || '; triggers ' || coalesce((
        SELECT pg_catalog.string_agg(pg_catalog.regexp_replace(g.tgname, '_[0-9]+$', '') || ' '
            || g.tgenabled::text || ' ' || g.tgtype::text, '; ' ORDER BY g.tgname)
        FROM pg_catalog.pg_trigger AS g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal), 'none')
FROM pg_catalog.pg_class AS c WHERE c.oid = '%s'::regclass
