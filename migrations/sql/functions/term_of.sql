-- Returns the end of the term that the rule of the tenant gives a thread, or NULL if there is none. The rule that was
-- the newest when the thread was opened counts, so that a later rule cannot shorten a term. Computing the term here costs
-- an append nothing. On a cluster, the log may be on another node, and there are no such terms.
CREATE FUNCTION compaction_store.term_of(p_thread_uid uuid) RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_thread compaction_store.threads;
    v_seconds text;
BEGIN
    IF compaction_store.is_distributed() THEN
        RETURN NULL;
    END IF;
    SELECT t.* INTO v_thread FROM compaction_store.threads AS t WHERE t.thread_uid = p_thread_uid;
    SELECT substring(e.body::text FROM '^[{]"new_threads_seconds":([0-9]{1,10})[,}]') INTO v_seconds
    FROM compaction_store.events AS e
    WHERE e.thread_uid = compaction_store.find_thread(v_thread.tenant, 'compaction-store:log')
        AND e.kind = 'rule' AND e.created_at <= v_thread.created_at
    ORDER BY e.pos DESC LIMIT 1;
    RETURN v_thread.created_at + make_interval(secs => v_seconds::double precision);
END
$$;
