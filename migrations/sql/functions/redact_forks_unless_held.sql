-- Refuses an erasure while a hold or a retention forbids it; with p_insist, only a locked retention does. Otherwise calls
-- redact_forks, and returns its result. refused_by is the pos of the hold or retention, or 0 for the rule of the tenant,
-- and refusal is the text of the error; both are NULL if nothing forbids the erasure. Without p_has_content, all that is
-- to be erased in the thread itself is erased already, so that only forks can forbid it. A refusal is recorded as an
-- event of the chain, once for each salt. The function returns the refusal instead of raising an error, because an error
-- would roll the event back; the client raises the error. A dry run (p_dry_run is true) records nothing. If the erasure
-- was ordered but is not confirmed yet, p_dry_run is NULL: nothing will be erased, but a refusal is recorded. p_seqs is
-- NULL for a whole thread. The caller has locked the head.
CREATE FUNCTION compaction_store.redact_forks_unless_held(
    p_head compaction_store.heads, p_seqs int8multirange, p_has_content boolean, p_actor text, p_salt bytea,
    p_body text, p_insist boolean, p_reaches boolean, p_dry_run boolean,
    OUT forks json, OUT refused_by bigint, OUT refusal text
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_forbidding bigint[];
BEGIN
    SELECT substring(e.body::text FROM '"because":"([^"]*)"') INTO refusal FROM compaction_store.events AS e
    WHERE e.thread_uid = p_head.thread_uid AND e.pos <= p_head.last_pos AND e.kind = 'refusal' AND e.salt = p_salt;
    IF FOUND THEN
        refused_by := coalesce(substring(refusal FROM '[0-9]+$')::bigint, 0);
        RETURN;
    END IF;
    IF p_has_content THEN
        v_forbidding := compaction_store.in_hold(p_head.thread_uid, p_head.last_pos, p_insist);
        SELECT w.forbidden_by, 'the thread is ' || w.why INTO refused_by, refusal
        FROM compaction_store.why_held(p_head.thread_uid, v_forbidding) AS w;
    END IF;
    IF refused_by IS NULL THEN
        BEGIN
            forks := compaction_store.redact_forks(
                p_head.thread_uid, coalesce(p_seqs, int8multirange(int8range(1, p_head.last_seq, '[]'))), p_actor,
                p_salt, p_body, p_insist, p_reaches, p_dry_run
            );
            RETURN;
        EXCEPTION WHEN SQLSTATE 'CS013' THEN
            -- Entering this handler has rolled back the erasures in other forks.
            GET STACKED DIAGNOSTICS refusal = MESSAGE_TEXT;
            refused_by := coalesce(substring(refusal FROM '[0-9]+$')::bigint, 0);
            v_forbidding := ARRAY[refused_by];
        END;
    END IF;
    IF p_dry_run THEN
        RETURN;
    END IF;
    PERFORM compaction_store.write_event(
        p_head, 'refusal', false, p_actor, p_salt,
        format(
            '{"refused":"%s","because":"%s",%s%s', CASE WHEN p_seqs IS NULL THEN 'erase' ELSE 'redact' END, refusal,
            '"seqs":' || CASE WHEN p_seqs IS NOT NULL THEN compaction_store.ranges(p_seqs) END || ',',
            substring(compaction_store.redaction_body(p_body, v_forbidding, p_name => 'forbidden_by') FROM 2)
        )
    );
END
$$;
