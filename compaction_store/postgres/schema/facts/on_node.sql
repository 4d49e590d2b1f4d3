SELECT coalesce(pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.string_agg(
    pg_catalog.concat_ws(' ', p.proname, pg_catalog.pg_get_function_arguments(p.oid), l.lanname,
        p.provolatile::text, p.prosecdef::text, p.proconfig::text, pg_catalog.pg_get_userbyid(p.proowner)::text,
        p.prosrc, (p.prosqlbody IS NOT NULL)::text),
    ' ' ORDER BY p.proname, p.oid), 'UTF8')), 'hex'), 'none')
FROM pg_catalog.pg_proc AS p
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
JOIN pg_catalog.pg_language AS l ON l.oid = p.prolang
WHERE n.nspname = 'compaction_store'
