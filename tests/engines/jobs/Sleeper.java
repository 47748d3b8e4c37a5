/** Two threads with names longer than the kernel keeps; ends by itself, or when its input does. */
public final class Sleeper {
    private Sleeper() {}

    public static void main(String[] arguments) throws Exception {
        for (String side : new String[] {"left", "right"}) {
            Thread thread =
                    new Thread(
                            () -> {
                                try {
                                    Thread.sleep(60_000);
                                } catch (InterruptedException end) {
                                    return;
                                }
                            },
                            "a name that the kernel cuts (" + side + ")");
            thread.setDaemon(true);
            thread.start();
        }
        System.out.println("ready");
        System.in.read();
    }
}
