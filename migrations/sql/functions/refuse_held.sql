-- Refuses an erasure while a hold or a retention forbids it. With p_insist, only a locked retention does. refused_by is the pos of the hold or retention, and
-- refusal is the text of the error; both are NULL if nothing forbids the erasure. If a hold or retention of a fork
-- forbids it, p_fork_refusal is the text of the error that redact_forks raised. A refusal is recorded as an event of
-- the chain, once for each salt. The function returns the refusal instead of raising an error, because an error would
-- roll the event back; the client raises the error. A dry run (p_dry_run is true) records nothing. If the erasure was
-- ordered but is not confirmed yet, p_dry_run is NULL: nothing will be erased, but a refusal is recorded. The caller
-- has locked the head.
CREATE FUNCTION compaction_store.refuse_held(
    p_head compaction_store.heads, p_what text, p_seqs int8multirange, p_actor text, p_salt bytea, p_body text,
    p_insist boolean, p_dry_run boolean, p_fork_refusal text, OUT refused_by bigint, OUT refusal text
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_forbidding bigint[];
    v_kind text;
    v_until timestamptz;
    v_locked boolean;
    v_body text;
BEGIN
    SELECT substring(e.body::text FROM '"because":"([^"]*)"') INTO refusal FROM compaction_store.events AS e
    WHERE e.thread_uid = p_head.thread_uid AND e.pos <= p_head.last_pos AND e.kind = 'refusal' AND e.salt = p_salt;
    IF FOUND THEN
        refused_by := substring(refusal FROM '[0-9]+$')::bigint;
        RETURN;
    END IF;
    IF p_fork_refusal IS NOT NULL THEN
        refusal := p_fork_refusal;
        refused_by := substring(refusal FROM '[0-9]+$')::bigint;
        v_forbidding := ARRAY[refused_by];
    ELSE
        v_forbidding := compaction_store.in_hold(p_head.thread_uid, p_head.last_pos, p_insist);
        -- If both a hold and a retention forbid the erasure, the error names the hold.
        SELECT e.pos, e.kind, compaction_store.retained_until(e.body::text), compaction_store.is_locked(e.body::text)
        INTO refused_by, v_kind, v_until, v_locked
        FROM compaction_store.events AS e WHERE e.thread_uid = p_head.thread_uid AND e.pos = ANY (v_forbidding)
        ORDER BY e.kind LIMIT 1;
        IF refused_by IS NULL AND 0 = ANY (v_forbidding) THEN
            refused_by := 0;
            v_until := compaction_store.term_of(p_head.thread_uid);
        END IF;
        IF refused_by IS NULL THEN
            RETURN;
        END IF;
        refusal := CASE v_kind
            WHEN 'hold' THEN format('the thread is held since pos %s', refused_by)
            ELSE format(
                'the thread is retained %suntil %s by pos %s', CASE WHEN v_locked THEN 'and locked ' END,
                to_char(v_until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), refused_by
            )
        END;
    END IF;
    IF p_dry_run THEN
        RETURN;
    END IF;
    v_body := format(
        '{"refused":"%s","because":"%s","forbidden_by":%s,%s%s', p_what, refusal, array_to_json(v_forbidding),
        '"seqs":' || CASE WHEN p_seqs IS NOT NULL THEN compaction_store.ranges(p_seqs) END || ',',
        substring(compaction_store.redaction_body(p_body, '{}') FROM 2)
    );
    PERFORM compaction_store.write_event(p_head, 'refusal', false, p_actor, p_salt, v_body);
END
$$;
