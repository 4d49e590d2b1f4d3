-- Asks for a turn on a thread, or for the place of a waiting turn. place is 0 if the turn has the thread now, and
-- otherwise its place in the queue. Only the first in the queue gets a free thread, so turns begin in the order of
-- their first calls. A waiting turn must ask again within 5 seconds to keep its place. Most calls that only continue to
-- wait read one row, lock nothing and write nothing. last_seq and head are the thread's when the turn begins; the
-- other columns say who has the thread and until when. Only the server's clock is used. The commit does not wait for
-- the disk: a crash may lose a turn, but two turns never have the same thread, because hold_turn refuses appends of a
-- lost turn.
CREATE FUNCTION compaction_store.take_turn(
    p_tenant text, p_thread_id text, p_turn_id uuid, p_actor text, p_seconds double precision, p_waits boolean,
    OUT place integer, OUT held_since timestamptz, OUT held_until timestamptz, OUT holder text, OUT holder_login text,
    OUT last_seq bigint, OUT head bytea
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    c_patience CONSTANT interval := '5 seconds';
    -- The most turns that have a place in the queue, which bounds the size of the row. Other turns wait without a
    -- place.
    c_most CONSTANT integer := 1000;
    v_now timestamptz := clock_timestamp();
    v_turn record;
    v_thread_uid uuid;
    v_waiting uuid[];
    v_until timestamptz[];
    v_is_free boolean;
BEGIN
    IF (p_seconds > 0 AND p_seconds <= 3600) IS NOT TRUE THEN
        RAISE EXCEPTION 'a lease must be for more than 0 and at most 3600 seconds' USING ERRCODE = 'CS019';
    END IF;
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    SELECT t.turn_id, t.held_since, t.held_until, t.actor, t.login, t.waiting, t.waiting_until INTO v_turn
    FROM compaction_store.turns AS t WHERE t.tenant = p_tenant AND t.thread_id = p_thread_id;
    IF FOUND THEN
        SELECT w.place INTO place FROM compaction_store.live_turns(v_turn.waiting, v_turn.waiting_until, p_turn_id) AS w;
        IF (
            v_turn.waiting_until[array_position(v_turn.waiting, p_turn_id)] > v_now + c_patience / 2
            AND (place > 1 OR v_turn.held_until > v_now)
        ) OR (NOT p_waits AND v_turn.held_until > v_now AND v_turn.turn_id <> p_turn_id) THEN
            held_since := v_turn.held_since;
            held_until := v_turn.held_until;
            holder := v_turn.actor;
            holder_login := v_turn.login;
            RETURN;
        END IF;
    END IF;

    PERFORM compaction_store.refuse_bad_name(p_tenant, p_thread_id);
    PERFORM set_config('synchronous_commit', 'off', true);
    LOOP
        -- The row may be missing, because it is deleted when a turn ends and no turn waits.
        INSERT INTO compaction_store.turns (tenant, thread_id) VALUES (p_tenant, p_thread_id) ON CONFLICT DO NOTHING;
        SELECT t.turn_id, t.held_since, t.held_until, t.actor, t.login, t.waiting, t.waiting_until INTO v_turn
        FROM compaction_store.turns AS t WHERE t.tenant = p_tenant AND t.thread_id = p_thread_id FOR UPDATE;
        EXIT WHEN FOUND;
    END LOOP;
    v_now := clock_timestamp();
    SELECT w.place, w.turns, w.until INTO place, v_waiting, v_until
    FROM compaction_store.live_turns(v_turn.waiting, v_turn.waiting_until, p_turn_id) AS w;
    IF v_turn.turn_id = p_turn_id THEN
        -- The turn has the thread already: this is a repeated call.
        held_since := v_turn.held_since;
    ELSIF place = 1 AND (v_turn.turn_id IS NULL OR v_turn.held_until <= v_now) THEN
        held_since := v_now;
    ELSE
        held_since := v_turn.held_since;
        held_until := v_turn.held_until;
        holder := v_turn.actor;
        holder_login := v_turn.login;
        IF NOT p_waits THEN
            RETURN;
        END IF;
        IF place > cardinality(v_waiting) AND place <= c_most THEN
            v_waiting := v_waiting || p_turn_id;
            v_until := v_until || v_now;
        END IF;
        IF place <= c_most THEN
            v_until[place] := v_now + c_patience;
        END IF;
        UPDATE compaction_store.turns AS t SET waiting = v_waiting, waiting_until = v_until
        WHERE t.tenant = p_tenant AND t.thread_id = p_thread_id;
        RETURN;
    END IF;
    place := 0;
    held_until := v_now + make_interval(secs => p_seconds);
    holder := p_actor;
    holder_login := session_user;
    UPDATE compaction_store.turns AS t
    SET turn_id = p_turn_id, held_since = take_turn.held_since, held_until = take_turn.held_until, actor = p_actor,
        login = session_user,
        waiting = CASE WHEN v_waiting[1] = p_turn_id THEN v_waiting[2:] ELSE v_waiting END,
        waiting_until = CASE WHEN v_waiting[1] = p_turn_id THEN v_until[2:] ELSE v_until END
    WHERE t.tenant = p_tenant AND t.thread_id = p_thread_id;
    IF compaction_store.is_distributed() THEN
        -- The thread may be on another node, so the client reads last_seq and head there.
        RETURN;
    END IF;
    v_thread_uid := compaction_store.find_thread(p_tenant, p_thread_id);
    SELECT h.last_seq, h.head INTO last_seq, head FROM compaction_store.heads AS h WHERE h.thread_uid = v_thread_uid;
    last_seq := coalesce(last_seq, 0);
END
$$;
