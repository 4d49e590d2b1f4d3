-- Returns the pos of the events that forbid erasing from a thread now: the newest hold or release if it is a hold, and
-- the newest retention if it has not ended. The list begins with 0, which is no pos, if the term that the rule of the
-- tenant gives the thread has not ended. With p_insist, returns only a locked retention, which nobody can override. The caller has
-- locked the head.
CREATE FUNCTION compaction_store.in_hold(p_thread_uid uuid, p_last_pos bigint, p_insist boolean DEFAULT false) RETURNS bigint[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN ARRAY(
        SELECT e.pos FROM (
            SELECT 0 AS pos, p_insist IS NOT TRUE AND compaction_store.term_of(p_thread_uid) > clock_timestamp() AS forbids
            UNION ALL
            (
                SELECT h.pos, h.kind = 'hold' AND p_insist IS NOT TRUE FROM compaction_store.events AS h
                WHERE h.thread_uid = p_thread_uid AND h.pos <= p_last_pos AND h.kind IN ('hold', 'release')
                ORDER BY h.pos DESC LIMIT 1
            )
            UNION ALL
            (
                SELECT r.pos, compaction_store.retained_until(r.body::text) > clock_timestamp()
                    AND (p_insist IS NOT TRUE OR compaction_store.is_locked(r.body::text))
                FROM compaction_store.events AS r
                WHERE r.thread_uid = p_thread_uid AND r.pos <= p_last_pos AND r.kind = 'retention'
                ORDER BY r.pos DESC LIMIT 1
            )
        ) AS e WHERE e.forbids ORDER BY e.pos
    );
END
$$;
