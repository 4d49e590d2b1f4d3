-- Facts that an administrator may intend, so they are notes and not findings. Each is one line of text.
SELECT 'event triggers, which may change the objects that a migration creates: '
    || pg_catalog.string_agg(e.evtname::text, ', ' ORDER BY e.evtname)
FROM pg_catalog.pg_event_trigger AS e JOIN pg_catalog.pg_proc AS p ON p.oid = e.evtfoid
WHERE e.evtenabled <> 'D'
    AND NOT (p.proname = 'citus_drop_trigger' AND p.pronamespace = 'pg_catalog'::regnamespace)
HAVING count(*) > 0
UNION ALL
SELECT 'publications, which send stored rows to other servers: '
    || pg_catalog.string_agg(DISTINCT p.pubname::text, ', ' ORDER BY p.pubname::text)
FROM pg_catalog.pg_publication_tables AS p WHERE p.schemaname = 'compaction_store' HAVING count(*) > 0
UNION ALL
SELECT 'subscriptions, which write without the functions: '
    || pg_catalog.string_agg(DISTINCT s.subname::text, ', ' ORDER BY s.subname::text)
FROM pg_catalog.pg_subscription AS s
JOIN pg_catalog.pg_subscription_rel AS r ON r.srsubid = s.oid
JOIN pg_catalog.pg_class AS c ON c.oid = r.srrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'compaction_store' HAVING count(*) > 0
UNION ALL
SELECT 'replica identity is not the key: ' || pg_catalog.string_agg(c.relname::text, ', ' ORDER BY c.relname)
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'compaction_store' AND c.relkind = 'r' AND c.relreplident <> 'd' HAVING count(*) > 0;
