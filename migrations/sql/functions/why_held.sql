-- Returns why a thread must not be erased, of all that forbids it, which in_hold returned: the hold if there is one, else
-- the longest term. forbidden_by is its pos, or 0 for the rule of the tenant.
CREATE FUNCTION compaction_store.why_held(
    p_thread_uid uuid, p_forbidding bigint[], OUT forbidden_by bigint, OUT why text
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT f.pos, CASE f.kind
        WHEN 'hold' THEN format('held since pos %s', f.pos)
        ELSE format(
            'retained %suntil %s by %s', CASE WHEN f.locked THEN 'and locked ' END,
            to_char(f.until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
            CASE f.pos WHEN 0 THEN 'the tenant''s rule' ELSE format('pos %s', f.pos) END
        )
    END
    INTO forbidden_by, why
    FROM (
        SELECT e.pos, e.kind, compaction_store.retained_until(e.body::text) AS until,
            compaction_store.is_locked(e.body::text) AS locked
        FROM compaction_store.events AS e WHERE e.thread_uid = p_thread_uid AND e.pos = ANY (p_forbidding)
        UNION ALL
        SELECT 0, 'retention', compaction_store.term_of(p_thread_uid), false WHERE 0 = ANY (p_forbidding)
    ) AS f ORDER BY f.kind, f.until DESC LIMIT 1;
END
$$;
