-- Erases messages, given as ranges of seqs, and every record that may repeat them. Messages that are erased already are
-- left out; if none remain, nothing is written and event_pos is NULL. Each call has a new salt, so a call with a known
-- salt is a retry and returns the first result. With p_insist, holds and retentions are overridden, except for a locked
-- retention, and the event lists them; without it, a refusal is returned as by redact_forks_unless_held. With p_dry_run, nothing is written; seqs and numbers say
-- what would be erased. forks lists the forks that have copies of the messages, including erased copies. The copies are
-- erased too, unless p_reaches is false.
CREATE FUNCTION compaction_store.redact(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_starts bigint[], p_ends bigint[], p_actor text, p_salt bytea, p_body text,
    p_insist boolean, p_dry_run boolean DEFAULT false, p_reaches boolean DEFAULT true, OUT event_pos bigint,
    OUT seqs int8multirange, OUT numbers int8multirange, OUT forks json,
    OUT refused_by bigint, OUT refusal text
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_head compaction_store.heads;
    v_wanted int8multirange;
    v_body text;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    PERFORM compaction_store.refuse_override(p_insist);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    PERFORM compaction_store.queue_up(p_thread_uid);
    SELECT h.* INTO v_head FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    IF EXISTS (SELECT FROM unnest(p_starts, p_ends) AS w (first, last) WHERE (w.first <= w.last) IS NOT TRUE) THEN
        RAISE EXCEPTION 'each range of seqs must have a first seq that is at most its last seq' USING ERRCODE = 'CS019';
    END IF;
    IF (
        SELECT min(w.first) >= 1 AND max(w.last) <= v_head.last_seq FROM unnest(p_starts, p_ends) AS w (first, last)
    ) IS NOT TRUE THEN
        RAISE EXCEPTION 'no seq %', (SELECT max(w.last) FROM unnest(p_ends) AS w (last))
            USING ERRCODE = 'CS014', DETAIL = v_head.last_seq::text;
    END IF;
    SELECT range_agg(int8range(w.first, w.last, '[]')) INTO v_wanted FROM unnest(p_starts, p_ends) AS w (first, last);
    SELECT r.event_pos, r.seqs, r.numbers INTO event_pos, seqs, numbers
    FROM compaction_store.redacted_by(p_thread_uid, v_head.last_pos, p_salt) AS r;
    IF event_pos IS NOT NULL THEN
        forks := compaction_store.redact_forks(
            p_thread_uid, v_wanted, p_actor, p_salt, p_body, p_insist, p_reaches, true
        );
        RETURN;
    END IF;
    SELECT range_agg(int8range(m.seq, m.seq, '[]')) INTO seqs
    FROM (SELECT lower(r), upper(r) FROM unnest(v_wanted) AS r OFFSET 0) AS w (first, last)
    CROSS JOIN LATERAL (
        SELECT g.seq FROM compaction_store.messages AS g
        WHERE g.thread_uid = p_thread_uid AND g.seq >= w.first AND g.seq < w.last
            AND g.redacted_pos IS NULL
        OFFSET 0
    ) AS m;
    SELECT r.* INTO forks, refused_by, refusal FROM compaction_store.redact_forks_unless_held(
        v_head, v_wanted, seqs IS NOT NULL, p_actor, p_salt, p_body, p_insist, p_reaches, p_dry_run
    ) AS r;
    IF refused_by IS NOT NULL THEN
        seqs := NULL;
    END IF;
    IF seqs IS NULL THEN
        RETURN;
    END IF;
    v_body := compaction_store.redaction_body(
        p_body, compaction_store.in_hold(p_thread_uid, v_head.last_pos), forks, p_reaches IS FALSE
    );
    numbers := compaction_store.derived_records(p_thread_uid, seqs);
    IF p_dry_run IS NOT FALSE THEN
        RETURN;
    END IF;
    event_pos := compaction_store.erase_content(v_head, p_actor, p_salt, v_body, seqs, numbers);
END
$$;
