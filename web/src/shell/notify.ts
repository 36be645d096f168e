import { useNavigate } from '@tanstack/react-router';
import { useEffect, useState } from 'react';
import { type HistoryEvent, history } from '../api/history';
import { usePreference } from './preferences';

/** The notification for an event; most events have none. */
function saidBy({ kind, data, run_id }: HistoryEvent): string | null {
  switch (kind) {
    case 'task.waiting':
      return data.waiting_for === 'input' ? 'asks you something' : null;
    case 'run.waiting':
      return 'asks you something';
    case 'task.failed':
      return run_id ? null : 'failed';
    case 'run.failed':
    case 'schedule.failed':
      return 'failed';
    case 'run.completed':
      return 'finished';
    case 'attempt.failed':
      return data.failure === 'limit' ? 'reached its limit' : null;
    default:
      return null;
  }
}

function show(event: HistoryEvent, open: (path: string) => void): void {
  const said = saidBy(event);
  if (!said || document.hasFocus()) return;
  const title = typeof event.data.title === 'string' ? event.data.title : 'A task';
  const body = typeof event.data.reason === 'string' ? event.data.reason : '';
  // Several tabs tell of the same: the browser shows it once.
  const shown = new Notification(`${title} ${said}`, {
    body,
    tag: `kapelle-${event.seq}`,
    icon: '/icon.svg',
  });
  shown.onclick = () => {
    window.focus();
    if (event.task_id) open(`/tasks/${event.task_id}`);
    else if (event.run_id) open(`/runs/${event.run_id}`);
  };
}

const REFUSED =
  'The browser does not allow it for this page. Allow notifications for this address in its settings (the sign beside the address), then tick it again.';
const UNANSWERED =
  'The browser asks whether this page may notify you: allow it there, or at the sign beside the address.';
const UNKNOWN = 'This browser has no notifications.';

/** Whether desktop notifications are on, how to switch them, and the problem with that. */
export function useNotices(): [boolean, () => Promise<void>, string | null] {
  const [kept, keep] = usePreference('notices', 'off');
  const [problem, say] = useState<string | null>(null);
  const isKnown = 'Notification' in window;
  const on = kept === 'on' && isKnown && Notification.permission === 'granted';
  const change = async () => {
    say(null);
    if (on) return keep('off');
    if (!isKnown) return say(UNKNOWN);
    // A browser may leave it unanswered for ever.
    say(UNANSWERED);
    const answer = await Notification.requestPermission();
    if (answer === 'granted') {
      keep('on');
      say(null);
    } else say(answer === 'denied' ? REFUSED : UNANSWERED);
  };
  return [on, change, problem];
}

/** Tells of it for as long as the page is open. */
export function useNotifier(): void {
  const [on] = useNotices();
  const navigate = useNavigate();
  useEffect(() => {
    if (!on) return;
    return history.onEvents((events) => {
      for (const event of events) show(event, (to) => void navigate({ to }));
    });
  }, [on, navigate]);
}
