-- Functions are grouped by name, because a second function with other arguments could be called instead.
SELECT f.subject, f.fact FROM (
    SELECT p.proname || '()' AS name,
        pg_catalog.string_agg(pg_catalog.concat_ws(', ',
            l.lanname::text,
            CASE p.provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' END,
            CASE WHEN p.proisstrict THEN 'strict' END, CASE WHEN p.proleakproof THEN 'leakproof' END,
            CASE WHEN p.prokind <> 'f' THEN 'of kind ' || p.prokind::text END,
            CASE WHEN p.prosecdef THEN 'security definer' END,
            CASE WHEN p.proparallel <> 'u' THEN 'parallel ' || p.proparallel::text END,
            CASE WHEN p.procost <> 100 OR p.prorows NOT IN (0, 1000) THEN 'of another cost' END,
            CASE WHEN p.prosqlbody IS NOT NULL THEN 'with a second body' END,
            CASE WHEN p.probin IS NOT NULL OR p.prosupport <> 0 OR p.protrftypes IS NOT NULL
                THEN 'with another support' END,
            'takes ' || pg_catalog.pg_get_function_arguments(p.oid),
            'returns ' || pg_catalog.pg_get_function_result(p.oid)), ' and ' ORDER BY p.oid) AS says,
        pg_catalog.string_agg(coalesce(
            (SELECT pg_catalog.string_agg(s, '; ' ORDER BY s) FROM pg_catalog.unnest(p.proconfig) AS s), 'none'
        ), ' and ') AS settings,
        pg_catalog.string_agg(
            pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(p.prosrc, 'UTF8')), 'hex'), ' and '
        ) AS body,
        pg_catalog.string_agg(DISTINCT pg_catalog.pg_get_userbyid(p.proowner)::text, ' and ') AS owner
    FROM pg_catalog.pg_proc AS p
    JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
    JOIN pg_catalog.pg_language AS l ON l.oid = p.prolang
    WHERE n.nspname = 'compaction_store'
    GROUP BY p.proname
) AS g
CROSS JOIN LATERAL (VALUES
    ('function ' || g.name, g.says), ('settings of function ' || g.name, g.settings),
    ('body of function ' || g.name, g.body), ('owner of function ' || g.name, g.owner)
) AS f (subject, fact);
