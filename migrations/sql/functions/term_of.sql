-- Returns the end of the term that the rule of the tenant gives a thread, or NULL if there is none. The rule that was
-- the newest when the thread was opened counts, so that a later rule cannot shorten a term. A fork has copies of its
-- parent's messages, so it also has the terms of its parent and of the parent's parents, and the longest of all counts. A
-- parent counts when it is erased too, but not if it is not in this database. Computing the term here costs an append
-- nothing. On a cluster, the log may be on another node, and there are no such terms.
CREATE FUNCTION compaction_store.term_of(p_thread_uid uuid) RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_log uuid;
    v_end timestamptz;
BEGIN
    IF compaction_store.is_distributed() THEN
        RETURN NULL;
    END IF;
    SELECT compaction_store.find_thread(t.tenant, 'compaction-store:log') INTO v_log
    FROM compaction_store.threads AS t WHERE t.thread_uid = p_thread_uid;
    WITH RECURSIVE line AS (
        SELECT p_thread_uid AS thread_uid
        -- UNION leaves out what is there already, so that forged origins cannot make it endless.
        UNION
        SELECT substring(
            e.body::text FROM '^[{]"parent":"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"'
        )::uuid
        FROM line AS l JOIN compaction_store.events AS e ON e.thread_uid = l.thread_uid
        WHERE e.pos = 1 AND e.kind = 'origin'
    )
    SELECT max(t.created_at + make_interval(secs => (
        SELECT substring(e.body::text FROM '^[{]"new_threads_seconds":([0-9]{1,10})[,}]')::double precision
        FROM compaction_store.events AS e
        WHERE e.thread_uid = v_log AND e.kind = 'rule' AND e.created_at <= t.created_at
        ORDER BY e.pos DESC LIMIT 1
    ))) INTO v_end
    FROM line AS l JOIN compaction_store.threads AS t ON t.thread_uid = l.thread_uid;
    RETURN v_end;
END
$$;
