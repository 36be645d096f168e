import type { IconName } from '../parts/icon';

interface Place {
  to: string;
  text: string;
  icon: IconName;
  /** The keys that go there. */
  keys: string;
  /** Tells whether phones have a tab for the view. */
  isTab?: boolean;
}

/** The views of the page. */
export const PLACES: Place[] = [
  { to: '/', text: 'Now', icon: 'now', keys: 'g n', isTab: true },
  { to: '/work', text: 'Work', icon: 'work', keys: 'g w', isTab: true },
  { to: '/new', text: 'New', icon: 'plus', keys: 'c', isTab: true },
  { to: '/schedules', text: 'Schedules', icon: 'schedules', keys: 'g s' },
  { to: '/knowledge', text: 'Knowledge', icon: 'knowledge', keys: 'g k' },
  { to: '/projects', text: 'Projects and archive', icon: 'work', keys: '' },
  { to: '/report', text: 'Report', icon: 'work', keys: '' },
  { to: '/usage', text: 'Usage', icon: 'usage', keys: 'g u' },
  { to: '/system', text: 'System', icon: 'system', keys: 'g y' },
];
