-- This leaves out Citus's own trigger, and the internal triggers of foreign keys, because a user's tables may have
-- foreign keys to these tables.
SELECT pg_catalog.format('trigger %s.%s', c.relname, g.tgname), pg_catalog.concat_ws(', ',
    CASE g.tgenabled WHEN 'A' THEN 'always' WHEN 'D' THEN 'disabled' ELSE 'enabled ' || g.tgenabled::text END,
    'type ' || g.tgtype::text, f.nspname || '.' || p.proname,
    CASE WHEN g.tgqual IS NOT NULL THEN 'with a condition' END,
    CASE WHEN g.tgattr::text <> '' THEN 'of columns' END, CASE WHEN g.tgnargs > 0 THEN 'with arguments' END,
    CASE WHEN g.tgisinternal THEN 'internal' END, CASE WHEN g.tgdeferrable THEN 'deferrable' END)
FROM pg_catalog.pg_trigger AS g
JOIN pg_catalog.pg_class AS c ON c.oid = g.tgrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_proc AS p ON p.oid = g.tgfoid
JOIN pg_catalog.pg_namespace AS f ON f.oid = p.pronamespace
WHERE n.nspname = 'compaction_store' AND NOT c.relispartition AND NOT (g.tgisinternal AND (
    p.oid < 16384 AND p.proname ~ '^(RI_FKey_|unique_key_recheck$)'
    OR f.nspname = 'pg_catalog' AND p.proname = 'citus_truncate_trigger'));
